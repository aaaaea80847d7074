//! Channel numbers of exec and attach over a WebSocket, the same at both ends.

/// Standard input of the command.
pub const STDIN: u8 = 0;
/// Standard output of the command.
pub const STDOUT: u8 = 1;
/// Standard error of the command.
pub const STDERR: u8 = 2;
/// Exit status of the command: a Kubernetes `Status`.
pub const OUTCOME: u8 = 3;
/// Size of the terminal.
pub const RESIZE: u8 = 4;
/// The payload is the number of a channel that the sender has closed; version 5 only.
pub const CLOSE: u8 = 255;
