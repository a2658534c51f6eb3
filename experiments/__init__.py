"""Jobs: each composes the parts of zaya_jax in reading order."""

from zaya_jax.installation import check_installed

check_installed()
