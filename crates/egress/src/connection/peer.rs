//! A connection to another sandbox.

use std::io;

use hutch_policy::{Destination, Host};
use tokio::net::TcpStream;

use crate::refusal::{Denial, Reason, Refusal, reset};
use crate::relay;
use crate::sandbox::Sandbox;

impl Sandbox {
    /// Serves a connection to a peer until its end. Returns the connection if it is for something else.
    pub(super) async fn serve_peer(&self, client: TcpStream, destination: &Destination) -> Option<TcpStream> {
        let Host::Name(name) = &destination.host else { return Some(client) };
        let Some(peer) = self.peers.find(name) else { return Some(client) };
        let port = destination.port;
        let refusal = |reason| Refusal { destination: destination.to_string(), reason };
        // For the socket that is kept beside the connection.
        let Some(_kept) = self.way.descriptors.take(1) else {
            self.refuse(client, &mut Vec::new(), refusal(Reason::Full)).await;
            return None;
        };
        match self.peers.connect(&peer, port).await {
            Err(reason) => self.refuse(client, &mut Vec::new(), refusal(reason)).await,
            Ok((server, _kept_awake)) => {
                let (mut client, mut server) = (client, server);
                let mut rules = self.rules.subscribe();
                let sent = |bytes| {
                    self.counters().sent(bytes);
                    Ok::<_, io::Error>(())
                };
                let received = |bytes| self.counters().received(bytes);
                let taken = tokio::select! {
                    _ = relay::join(&self.way.descriptors, &mut client, &mut server, Vec::new(), sent, received) => return None,
                    () = self.peers.closed(name, port) => true,
                    _ = rules.wait_for(Option::is_none) => false,
                };
                reset(&client);
                reset(&server);
                if taken {
                    self.refused(refusal(Reason::Denied(Denial::default())));
                }
            }
        }
        None
    }
}
