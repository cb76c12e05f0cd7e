"""Build everything that a release consists of: ``make release VERSION=…``.

The files go to ``out/release/VERSION``; the maintainer only pushes them. Everything is made from
an export of the commit, never from the working tree. See ``docs/releasing.md``.
"""
