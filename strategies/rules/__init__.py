"""The sharding rule of every primitive."""
