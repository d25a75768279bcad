"""VolumeClaims and volumes, and how many volumes each node has attached."""
