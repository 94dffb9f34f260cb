"""How a replica serves: policies as dataclasses, one decorator each, on one engine."""
