"""DynamoDB's expression language, parsed once and evaluated on items. What DynamoDB would refuse raises a `Refusal`."""
