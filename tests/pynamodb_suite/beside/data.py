"""The data of PynamoDB's tests: as they were last shipped, with booleans as they are called and stored since."""

from . import shipped_data


def _name_today(name):
    return name.replace("_CONVERSION", "").replace("_NEW_STYLE", "")


def _stored_today(value):
    if isinstance(value, dict):
        return {name: _part_today(name, part) for name, part in value.items()}
    return [*map(_stored_today, value)] if isinstance(value, list) else value


def _part_today(name, part):
    return {"BOOL": part["N"] == "1"} if name == "is_dude" and "N" in part else _stored_today(part)


globals().update(
    {_name_today(name): _stored_today(value) for name, value in vars(shipped_data).items() if name.isupper()}
)
