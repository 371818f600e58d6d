"""Which experts see a token, and how their load is kept even: one file a rule, behind `k3lab.router.base`."""
