//! The GPU backend from the outside: its kernels as declared, the tables of cases, and how work is handed over.

mod cases;
mod kernels;
mod metal;
mod submissions;
