"""Programs to read and to run. A package, since Opacus installs one of this very name beside it."""
