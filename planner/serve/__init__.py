"""Plan serving: a prefill and a decode plan, on one slice or on two."""
