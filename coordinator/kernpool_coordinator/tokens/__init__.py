"""Who may do what: API tokens, join tokens, roles."""
