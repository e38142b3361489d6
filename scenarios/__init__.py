"""Programs that really fail, each with the truth beside it, and the table of what the report makes of them."""
