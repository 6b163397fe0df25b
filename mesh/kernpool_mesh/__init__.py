"""The language of the mesh: what agents and coordinators say to each other, and how it is framed."""
