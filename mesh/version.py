"""The version of this distribution; the build reads it from here."""

VERSION = "0.1.0"
