"""What the server of `tests.support.crew` does before it forks: it imports what nearly all processes need."""

import gc

import botocore.session
import pytest  # noqa: F401

import tests.campaign.party
import tests.simulation.planted
import tests.support.bank
import tests.support.workers  # noqa: F401
from tests.engines import descriptions

descriptions.share()
botocore.session.get_session().create_client("dynamodb", region_name="us-east-1").close()
gc.collect()
gc.freeze()
