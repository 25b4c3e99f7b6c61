"""Conformance suites and toy worlds for plug-in authors."""
