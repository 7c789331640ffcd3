"""The world of the simulation: choices, actors and processes, clocks, and a DynamoDB behind a faulty network."""
