//! Placeholder until the module lands.
fn main() {}
