"""Plan a fleet: the number of servers of each slice that serve a traffic at least cost (`fleet`)."""
