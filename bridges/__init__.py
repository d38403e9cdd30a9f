"""Everything that touches another framework; each module imports its framework inside the function that needs it."""
