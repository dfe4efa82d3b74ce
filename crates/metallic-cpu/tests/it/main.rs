//! The CPU backend against the tables of cases that every backend runs.

mod cases;
