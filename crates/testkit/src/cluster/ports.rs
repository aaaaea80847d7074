use std::net::TcpListener;

/// Unused ports of loopback. Another process may take one before the cluster does; its start then fails.
pub(super) fn free<const N: usize>() -> std::io::Result<[u16; N]> {
    let mut listeners = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        // All are held until all are known, so that they differ.
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}
