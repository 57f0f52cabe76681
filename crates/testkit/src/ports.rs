//! Free ports on loopback.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// The range is below the ports that the kernel uses for outgoing connections (32768 and up). Otherwise a connection of
/// another test could take the port after our check and before the server binds it.
const FIRST: u16 = 10_000;
const COUNT: u16 = 22_000;

/// A port of 127.0.0.1 on which nothing listens and which this process has not returned before. The search begins at a
/// point that depends on the process id, so that parallel test runs rarely try the same ports.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() * 97 % u32::from(COUNT)).unwrap_or(0);
    (0..COUNT)
        .map(|_| FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a port between 10000 and 32000 is free")
}
