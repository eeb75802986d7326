"""The world turned into core types, one file each; an adapter imports core and no other adapter."""
