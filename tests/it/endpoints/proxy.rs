//! Proxies as sites have them: CONNECT (RFC 9110, 9.3.6) and SOCKS 5 (RFC 1928). Each forwards to one server only.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A proxy that runs until the tests end.
pub struct Proxy {
    /// The URL, as in `proxy-url` of a kubeconfig.
    pub url: String,
    used: Arc<AtomicUsize>,
}

impl Proxy {
    pub fn http(server: u16) -> Self {
        Self::start("http", server, |near| {
            let mut request = BufReader::new(near.try_clone()?);
            let mut line = String::new();
            request.read_line(&mut line)?;
            let asked = line.starts_with("CONNECT api.elsewhere.invalid:6443 ");
            while line.trim() != "" {
                line.clear();
                request.read_line(&mut line)?;
            }
            let answer = if asked { "HTTP/1.1 200 OK\r\n\r\n" } else { "HTTP/1.1 403 Forbidden\r\n\r\n" };
            near.write_all(answer.as_bytes())?;
            Ok(asked)
        })
    }

    pub fn socks5(server: u16) -> Self {
        Self::start("socks5", server, |near| {
            let mut hello = [0; 2];
            near.read_exact(&mut hello)?;
            near.read_exact(&mut vec![0; hello[1].into()])?;
            near.write_all(&[5, 0])?;
            let mut request = [0; 5];
            near.read_exact(&mut request)?;
            let mut name = vec![0; request[4].into()];
            near.read_exact(&mut name)?;
            near.read_exact(&mut [0; 2])?;
            // The client must send the domain name. A client that resolves the name itself would fail.
            let asked = request[..4] == [5, 1, 0, 3] && name == b"api.elsewhere.invalid";
            near.write_all(&[5, u8::from(!asked) * 2, 0, 1, 0, 0, 0, 0, 0, 0])?;
            Ok(asked)
        })
    }

    /// Returns how many connections were forwarded.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn start(scheme: &str, server: u16, greet: fn(&mut TcpStream) -> io::Result<bool>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the system has a free port");
        let url = format!("{scheme}://{}", listener.local_addr().expect("a listener has an address"));
        let used = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&used);
        std::thread::spawn(move || {
            for mut near in listener.incoming().flatten() {
                let count = Arc::clone(&count);
                std::thread::spawn(move || {
                    if greet(&mut near)? {
                        count.fetch_add(1, Ordering::Relaxed);
                        forward(&near, &TcpStream::connect((Ipv4Addr::LOCALHOST, server))?)?;
                    }
                    io::Result::Ok(())
                });
            }
        });
        Self { url, used }
    }
}

fn forward(near: &TcpStream, far: &TcpStream) -> io::Result<()> {
    let (mut up, mut down) = ((near.try_clone()?, far.try_clone()?), (far.try_clone()?, near.try_clone()?));
    let there = std::thread::spawn(move || {
        let _ = io::copy(&mut up.0, &mut up.1);
        let _ = up.1.shutdown(std::net::Shutdown::Write);
    });
    let _ = io::copy(&mut down.0, &mut down.1);
    let _ = down.1.shutdown(std::net::Shutdown::Write);
    let _ = there.join();
    Ok(())
}
