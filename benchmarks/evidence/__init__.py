"""Evidence: what was measured of one commit, in one folder that can be cited and checked."""
