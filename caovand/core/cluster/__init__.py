"""Several machines that serve one model: their daemons' reports and the decisions based on them."""
