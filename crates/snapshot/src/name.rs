//! Names of images and of their parts.

use std::fmt;

use hutch_image::PathSegment;

use crate::Error;

/// File with the key, beside the images.
pub(crate) const KEY: PathSegment = PathSegment::fixed("key");
/// File of an image that has the digests of all others.
pub(crate) const MANIFEST: PathSegment = PathSegment::fixed("manifest.json");
/// The image itself, for messages.
pub(crate) const WHOLE: &str = "image";
/// Folders of an image: one subfolder for each container or volume.
pub(crate) const MEMORY: PathSegment = PathSegment::fixed("memory");
pub(crate) const UPPERS: PathSegment = PathSegment::fixed("uppers");
pub(crate) const VOLUMES: PathSegment = PathSegment::fixed("volumes");
/// End of the name of an image that is not complete, and of one that is being removed.
pub(crate) const PARTIAL: &str = ".partial";
pub(crate) const REMOVED: &str = ".removed";
/// Maximum bytes of the id of an image: with an end, it is still one component of a path.
const MAX_ID_BYTES: usize = 200;

/// A tree of an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TreeName {
    /// Upper folder of the root of a container: what it changed in its image.
    Upper(PathSegment),
    /// A volume.
    Volume(PathSegment),
}

impl TreeName {
    /// Folder of the image, and name in it.
    pub(crate) fn place(&self) -> (PathSegment, &PathSegment) {
        match self {
            TreeName::Upper(container) => (UPPERS, container),
            TreeName::Volume(volume) => (VOLUMES, volume),
        }
    }
}

impl fmt::Display for TreeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeName::Upper(container) => write!(f, "upper folder of container {container}"),
            TreeName::Volume(volume) => write!(f, "volume {volume}"),
        }
    }
}

/// The memory of a container, for messages.
pub(crate) fn memory_of(container: &PathSegment) -> String {
    format!("memory of container {container}")
}

/// Checks that an image may have this name, which no other file of the folder has.
pub(crate) fn check_id(id: &PathSegment) -> Result<(), Error> {
    let name = id.as_str();
    let refused = |reason| Err(Error::Id { name: name.to_owned(), reason });
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.len() > MAX_ID_BYTES {
        return refused("it is longer than 200 bytes");
    }
    if !name.bytes().all(plain) || name.starts_with('.') {
        return refused("it must consist of letters, digits, '-', '_' and '.', and not begin with '.'");
    }
    if name == KEY.as_str() || name.ends_with(PARTIAL) || name.ends_with(REMOVED) {
        return refused("the name is reserved");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_and_unusual_ids_are_refused() {
        let long = "x".repeat(MAX_ID_BYTES + 1);
        for name in ["key", "a.partial", "a.removed", ".partial", ".a", "a b", "a\nb", "\u{e4}", &long] {
            let id = PathSegment::new(name).unwrap();
            assert!(matches!(check_id(&id), Err(Error::Id { .. })), "{name:?}");
        }
        for name in ["a", "7f9c-3", "default.box_1", "keys", &long[1..]] {
            check_id(&PathSegment::new(name).unwrap()).unwrap();
        }
    }
}
