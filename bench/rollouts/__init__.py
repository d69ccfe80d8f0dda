"""Full rollouts with the judge: equal greens are never rolled back as worse, bad ones always."""
