//! Protocol of a request, selected by its content type.

/// Framing of messages and encoding of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    /// Frames; the status in trailers.
    Grpc,
    /// Frames; the status in a last frame.
    GrpcWeb {
        /// True if everything is Base64.
        text: bool,
    },
    /// One message as the whole body; the status is that of HTTP.
    ConnectUnary,
    /// Frames; the status in a last frame, as JSON.
    ConnectStream,
}

/// Encoding of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Proto,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Protocol {
    pub(super) wire: Wire,
    pub(super) codec: Codec,
    /// Content type, also of the response.
    pub(super) kind: &'static str,
}

/// Supported content types.
pub(super) const KINDS: [&str; 10] = [
    "application/grpc",
    "application/grpc+proto",
    "application/grpc-web",
    "application/grpc-web+proto",
    "application/grpc-web-text",
    "application/grpc-web-text+proto",
    "application/proto",
    "application/json",
    "application/connect+proto",
    "application/connect+json",
];

impl Protocol {
    /// Returns the protocol of a content type, if it is one of [`KINDS`].
    pub(super) fn of(kind: &str) -> Option<Protocol> {
        let bare = kind.split(';').next().unwrap_or("").trim();
        let kind = KINDS.into_iter().find(|known| known.eq_ignore_ascii_case(bare))?;
        let wire = match kind.strip_prefix("application/")? {
            "grpc" | "grpc+proto" => Wire::Grpc,
            "grpc-web" | "grpc-web+proto" => Wire::GrpcWeb { text: false },
            "grpc-web-text" | "grpc-web-text+proto" => Wire::GrpcWeb { text: true },
            "proto" | "json" => Wire::ConnectUnary,
            _ => Wire::ConnectStream,
        };
        let codec = if kind.ends_with("json") { Codec::Json } else { Codec::Proto };
        Some(Protocol { wire, codec, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_listed_content_types_are_supported() {
        for kind in KINDS {
            assert_eq!(Protocol::of(&format!("{}; charset=utf-8", kind.to_uppercase())).unwrap().kind, kind);
        }
        for other in
            ["", "text/plain", "application/grpc+json", "application/grpcx", "application/connect+xml"]
        {
            assert_eq!(Protocol::of(other), None, "{other}");
        }
    }
}
