"""Several machines that serve one model: their daemons' reports, and what follows."""
