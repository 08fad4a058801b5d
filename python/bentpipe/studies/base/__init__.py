"""The framework that every study is built on."""
