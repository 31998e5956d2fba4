"""What code moves add to launch parameters: three searches at the same budget, their best states side by side."""
