"""An incident bundle → what stands out, the class of problem, and the next step."""
