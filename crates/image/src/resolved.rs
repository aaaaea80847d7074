//! An image on this machine: folders, and what the image says about its program.

use std::path::PathBuf;

/// Where the sandbox runtime is expected inside; who runs an image that wants it puts it there.
pub const SANDBOXD_PATH: &str = "/.hutch/sandboxd";
/// The command of [`crate::BuiltIn::Pause`].
pub const PAUSE: [&str; 2] = [SANDBOXD_PATH, "--pause"];
/// A resolved image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Identity of the content: `sha256:...` of the manifest, or the name and version of a built-in image.
    pub id: String,
    /// Folders to stack as the root, topmost first. Never to be written.
    pub layers: Vec<PathBuf>,
    /// Parts of this machine that belong to the image, read-only.
    pub mounts: Vec<HostMount>,
    /// The image's program configuration.
    pub config: ImageConfig,
    /// Name of the built-in image that replaces the requested published one.
    pub substituted: Option<&'static str>,
    /// `true` when the sandbox runtime must be mounted at [`SANDBOXD_PATH`].
    pub wants_sandboxd: bool,
}

/// A file or folder of this machine that shows in an image, read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostMount {
    /// Path on this machine.
    pub source: PathBuf,
    /// Path in the image.
    pub target: PathBuf,
}

/// Program configuration of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// The part of the command that a user's arguments follow.
    pub entrypoint: Vec<String>,
    /// Arguments when the user gives none.
    pub cmd: Vec<String>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// Absolute working directory.
    pub working_dir: Option<PathBuf>,
    /// `user`, `user:group` or numbers; empty is root inside.
    pub user: String,
}
