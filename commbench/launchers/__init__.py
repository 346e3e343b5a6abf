"""How the processes of a cluster come to be."""
