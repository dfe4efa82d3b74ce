//! One table of cases for every operation.
