//! Free ports on loopback.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the kernel gives to outgoing connections (32768 and up): between our test and the server's
/// bind, no connection of some test can take the port.
const FIRST: u16 = 10_000;
const COUNT: u16 = 22_000;

/// A port of 127.0.0.1 that nothing listens on, and that this process has not handed out before. The search begins at
/// a place that depends on the process, so that test runs side by side do not meet.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() * 97 % u32::from(COUNT)).unwrap_or(0);
    (0..COUNT)
        .map(|_| FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a free port between 10000 and 32000")
}
