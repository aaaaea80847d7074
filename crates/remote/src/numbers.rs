//! Numbers of the channels of exec and attach over a WebSocket, the same at both ends.

/// Standard input of the command.
pub const STDIN: u8 = 0;
/// Its standard output.
pub const STDOUT: u8 = 1;
/// Its standard error.
pub const STDERR: u8 = 2;
/// How it ended: a Kubernetes `Status`.
pub const OUTCOME: u8 = 3;
/// The size of its terminal.
pub const RESIZE: u8 = 4;
/// Its payload is the number of a channel that the sender has closed; version 5 only.
pub const CLOSE: u8 = 255;
