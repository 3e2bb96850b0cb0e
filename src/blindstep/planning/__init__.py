"""Plans: from a problem and a budget to every number of a run. Public: no record enters."""
