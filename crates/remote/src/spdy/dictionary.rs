//! Preset dictionary of the zlib streams of SPDY/3: words with their length in four bytes, then a run of
//! phrases.

/// Adler-32 of the whole dictionary, by which a zlib stream names it.
#[cfg(test)]
pub(crate) const ADLER32: u32 = 0xe3c6_a7c2;

const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|\
    accept-ranges|age|allow|authorization|cache-control|connection|content-base|content-encoding|content-language|\
    content-length|content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|\
    if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|\
    pragma|proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|\
    upgrade|user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|\
    set-cookie|keep-alive|origin";

const PHRASES: &str = "10010120120220520630030230330430530630740240540640740840941041141241341441541641750250450520\
    3 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug \
    Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch\
    charset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// Returns the dictionary's bytes.
pub(crate) fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 * PHRASES.len() + WORDS.len());
    for word in WORDS.split('|') {
        // No word is longer than 19 bytes.
        bytes.extend_from_slice(&(word.len() as u32).to_be_bytes());
        bytes.extend_from_slice(word.as_bytes());
    }
    bytes.extend_from_slice(PHRASES.as_bytes());
    bytes
}
