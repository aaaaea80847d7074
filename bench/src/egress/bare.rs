//! A relay that decides nothing: bytes move by `splice`, one thread for each direction. What it costs, every relay costs.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::ADDRESS;

/// Bytes of a pipe.
const PIPE: usize = 1 << 20;
/// Maximum bytes of a request.
const HEAD: usize = 4096;

/// Starts the relay, which understands `CONNECT`, and returns its address.
pub(super) fn start() -> Option<String> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    let address = listener.local_addr().ok()?.to_string();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || serve(client));
        }
    });
    Some(address)
}

fn serve(mut client: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    // `CONNECT NAME:PORT HTTP/1.1`
    let head = String::from_utf8_lossy(&head);
    let target = head.split_whitespace().nth(1).and_then(|target| target.rsplit_once(':'));
    let port = target.and_then(|(_, port)| port.parse().ok()).ok_or(std::io::ErrorKind::InvalidData)?;
    let server = TcpStream::connect::<(&str, u16)>((ADDRESS, port))?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (answers, requests) = (client.try_clone()?, server.try_clone()?);
    let back = std::thread::spawn(move || pass(&server, &answers));
    pass(&client, &requests)?;
    back.join().unwrap_or(Ok(()))
}

/// Passes bytes on until the end.
fn pass(from: &TcpStream, to: &TcpStream) -> std::io::Result<()> {
    let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setpipe_size(&input, PIPE)?;
    loop {
        let mut count = splice(from.as_fd(), None, &input, None, PIPE, SpliceFlags::MOVE)?;
        if count == 0 {
            return to.shutdown(Shutdown::Write);
        }
        while count > 0 {
            count -= splice(&output, None, to.as_fd(), None, count, SpliceFlags::MOVE)?;
        }
    }
}
