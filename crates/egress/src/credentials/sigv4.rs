//! Signature Version 4 of AWS: reads the header of a signed request, and signs a request. Pure.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use http::header::{self, HeaderMap};
use zeroize::Zeroizing;

use super::encode::{percent, percent_bytes, without_percent};

/// The algorithm, and the beginning of the names of all that AWS has.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
pub(super) const FAMILY: &str = "AWS4-";
/// Last part of a scope.
const TERMINATOR: &str = "aws4_request";
/// Header with the time of the signature, and with the hash of the body.
pub(super) const TIME: &str = "x-amz-date";
pub(super) const CONTENT: &str = "x-amz-content-sha256";
/// Maximum headers that are signed.
const SIGNED: usize = 64;
/// Services whose paths are encoded once.
const ENCODED_ONCE: [&str; 4] = ["s3", "s3-object-lambda", "s3-outposts", "s3express"];

/// Header `authorization` of a signed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) access_key_id: String,
    date: String,
    region: String,
    service: String,
    /// Names of headers, in small letters and in order.
    headers: Vec<String>,
    pub(super) signature: String,
}

impl Signed {
    /// Reads the header.
    ///
    /// # Errors
    /// Another algorithm, or another form.
    pub(super) fn read(text: &str) -> Result<Signed, &'static str> {
        let (algorithm, fields) = text.trim().split_once(' ').unwrap_or((text, ""));
        if algorithm != ALGORITHM {
            return Err("only AWS4-HMAC-SHA256 is signed again, not SigV4A or others");
        }
        Signed::fields(fields).ok_or("its header Authorization is not one of AWS4-HMAC-SHA256")
    }

    fn fields(text: &str) -> Option<Signed> {
        let mut found: [Option<&str>; 3] = [None; 3];
        for field in text.split(',') {
            let (name, value) = field.trim().split_once('=')?;
            let index =
                ["Credential", "SignedHeaders", "Signature"].iter().position(|known| *known == name)?;
            if found[index].replace(value).is_some() {
                return None;
            }
        }
        let [credential, headers, signature] = [found[0]?, found[1]?, found[2]?];
        let parts: Vec<&str> = credential.split('/').collect();
        let [access_key_id, date, region, service, TERMINATOR] = parts[..] else { return None };
        let word = |text: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            (1..=64).contains(&text.len()) && text.bytes().all(plain)
        };
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_date = date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit());
        let is_signature = signature.len() == 64 && signature.bytes().all(is_hex);
        let mut headers: Vec<String> = headers.split(';').map(str::to_owned).collect();
        let are_names = headers.len() <= SIGNED
            && headers.iter().all(|name| word(name) && name.bytes().all(|byte| !byte.is_ascii_uppercase()));
        if !([access_key_id, region, service].into_iter().all(word) && is_date && is_signature && are_names) {
            return None;
        }
        headers.sort();
        headers.dedup();
        let [access_key_id, date, region, service, signature] =
            [access_key_id, date, region, service, signature].map(str::to_owned);
        Some(Signed { access_key_id, date, region, service, headers, signature })
    }

    /// Returns the header for a request that is signed with this key. Headers that the request does not have are not signed,
    /// and those without which a signature is worth nothing always are.
    ///
    /// # Errors
    /// The request has no time, that of another day, or a header that is not text.
    pub(super) fn sign(
        &self,
        (access_key_id, secret): (&str, &str),
        request: &Outgoing<'_>,
    ) -> Result<(String, String), &'static str> {
        let time = request.headers.get(TIME).and_then(|time| time.to_str().ok());
        let is_time = |time: &&str| time.len() == 16 && time.starts_with(self.date.as_str());
        let time = time.filter(is_time).ok_or("it needs the header X-Amz-Date, of the day in its scope")?;
        let needed = [header::HOST.as_str(), TIME].map(str::to_owned);
        let is_there = |name: &&String| match name.as_str() {
            "host" => true,
            "authorization" => false,
            name => request.headers.contains_key(name),
        };
        let mut names: Vec<&String> = self.headers.iter().chain(&needed).filter(is_there).collect();
        names.sort();
        names.dedup();
        let canonical =
            request.canonical(&names, &self.service).ok_or("a header that is signed is not text")?;
        let scope = [self.date.as_str(), &self.region, &self.service, TERMINATOR].join("/");
        let text = [ALGORITHM, time, &scope, &hash(canonical.as_bytes())].join("\n");
        let key = Zeroizing::new(format!("AWS4{secret}"));
        let mut key = hmac::Key::new(HMAC_SHA256, key.as_bytes());
        for part in scope.split('/') {
            key = hmac::Key::new(HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref());
        }
        let signature = hex(hmac::sign(&key, text.as_bytes()).as_ref());
        let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
        let header = format!(
            "{ALGORITHM} Credential={access_key_id}/{scope}, SignedHeaders={}, Signature={signature}",
            names.join(";")
        );
        Ok((header, signature))
    }
}

/// A request as it is sent.
pub(super) struct Outgoing<'a> {
    pub(super) method: &'a str,
    pub(super) host: &'a str,
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    pub(super) headers: &'a HeaderMap,
    /// Hash of the body, or what stands for one.
    pub(super) content: &'a str,
}

impl Outgoing<'_> {
    fn canonical(&self, names: &[&String], service: &str) -> Option<String> {
        let mut headers = String::new();
        for name in names {
            let value = match name.as_str() {
                "host" => self.host.to_owned(),
                name => {
                    let plain = |value: &http::HeaderValue| {
                        Some(value.to_str().ok()?.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
                    };
                    let values = self.headers.get_all(name).iter().map(plain);
                    values.collect::<Option<Vec<String>>>()?.join(",")
                }
            };
            headers.push_str(&format!("{name}:{value}\n"));
        }
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let path = path(self.path, ENCODED_ONCE.contains(&service));
        Some([self.method, &path, &query(self.query), &headers, &names.join(";"), self.content].join("\n"))
    }
}

/// Returns the path as it is signed. S3 takes it as it is once decoded, others as it was sent.
fn path(path: &str, is_decoded: bool) -> String {
    let segment = |segment: &str| match is_decoded {
        true => percent_bytes(&without_percent(segment.as_bytes())),
        false => percent(segment),
    };
    path.split('/').map(segment).collect::<Vec<_>>().join("/")
}

/// Returns the parameters as they are signed: in order, and each encoded once.
fn query(query: &str) -> String {
    let encoded = |text: &str| percent_bytes(&without_percent(text.replace('+', " ").as_bytes()));
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    let mut parameters: Vec<(String, String)> = parameters
        .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
        .map(|(name, value)| (encoded(name), encoded(value)))
        .collect();
    parameters.sort();
    parameters.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// Returns the hash of a body, in hexadecimal digits.
pub(super) fn hash(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "AKIDEXAMPLE";
    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn authorization(id: &str, day: &str, service: &str, headers: &str) -> String {
        let signature = "0".repeat(64);
        format!(
            "AWS4-HMAC-SHA256 Credential={id}/{day}/us-east-1/{service}/aws4_request, SignedHeaders={headers}, \
             Signature={signature}"
        )
    }

    /// Signs a request of the published examples.
    fn signature(
        (method, target): (&str, &str),
        headers: &[(&'static str, &str)],
        body: &str,
        signed: &str,
    ) -> String {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut map: HeaderMap = [(TIME, "20150830T123600Z")].iter().map(pair).collect();
        map.extend(headers.iter().map(pair));
        let host = "example.amazonaws.com";
        let content = hash(body.as_bytes());
        let outgoing = Outgoing { method, host, path, query, headers: &map, content: &content };
        let read = Signed::read(&authorization(ID, "20150830", "service", signed)).unwrap();
        read.sign((ID, SECRET), &outgoing).unwrap().1
    }

    fn pair((name, value): &(&'static str, &str)) -> (http::HeaderName, http::HeaderValue) {
        (http::HeaderName::from_static(name), value.parse().unwrap())
    }

    #[test]
    fn requests_of_the_published_test_suite_have_its_signatures() {
        let unreserved = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let form = ("content-type", "application/x-www-form-urlencoded");
        let with_charset = ("content-type", "application/x-www-form-urlencoded; charset=utf8");
        let (mine, other) = (("my-header1", " value1"), ("my-header2", " \"a   b   c\""));
        let plain = "host;x-amz-date";
        for (request, headers, body, signed, expected) in [
            (
                ("GET", "/"),
                &[][..],
                "",
                plain,
                "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
            ),
            (
                ("POST", "/"),
                &[],
                "",
                plain,
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            ),
            (
                ("GET", "/?Param2=value2&Param1=value1"),
                &[],
                "",
                plain,
                "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            ),
            (
                ("GET", &format!("/?{unreserved}={unreserved}")),
                &[],
                "",
                plain,
                "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
            ),
            (
                ("GET", "/"),
                &[mine, other],
                "",
                "host;my-header1;my-header2;x-amz-date",
                "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
            ),
            (
                ("POST", "/"),
                &[form],
                "Param1=value1",
                "content-type;host;x-amz-date",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
            (
                ("POST", "/"),
                &[with_charset],
                "Param1=value1",
                "content-type;host;x-amz-date",
                "1a72ec8f64bd914b0e42e42607c7fbce7fb2c7465f63e3092b3b0d39fa77a6fe",
            ),
            // As botocore signs it, which encodes a path twice.
            (
                ("GET", "/example%20space/"),
                &[],
                "",
                plain,
                "446b817944c553435b35e813c261ff4e161fff982d1bacdef1c87f6785dd1662",
            ),
        ] {
            assert_eq!(signature(request, headers, body, signed), expected, "{request:?}");
        }
    }

    #[test]
    fn requests_of_the_documentation_of_s3_have_its_signatures() {
        let content = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        let (range, date) = (("range", "bytes=0-9"), ("date", "Fri, 24 May 2013 00:00:00 GMT"));
        let class = ("x-amz-storage-class", "REDUCED_REDUNDANCY");
        for (method, target, headers, content, expected) in [
            (
                "GET",
                "/test.txt",
                &[range][..],
                EMPTY,
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "PUT",
                "/test$file.text",
                &[date, class],
                content,
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                "GET",
                "/?lifecycle",
                &[],
                EMPTY,
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "GET",
                "/?max-keys=2&prefix=J",
                &[],
                EMPTY,
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let mut all = headers.to_vec();
            all.extend([(TIME, "20130524T000000Z"), (CONTENT, content)]);
            let headers: HeaderMap = all.iter().map(pair).collect();
            let mut names: Vec<&str> = all.iter().map(|(name, _)| *name).chain(["host"]).collect();
            names.sort();
            let host = "examplebucket.s3.amazonaws.com";
            let outgoing = Outgoing { method, host, path, query, headers: &headers, content };
            let read = Signed::read(&authorization("X", "20130524", "s3", &names.join(";"))).unwrap();
            let pair = ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
            assert_eq!(read.sign(pair, &outgoing).unwrap().1, expected, "{target}");
        }
    }

    #[test]
    fn what_is_signed_follows_the_request_that_is_sent() {
        let read =
            Signed::read(&authorization(ID, "20150830", "service", "authorization;gone;x-amz-date")).unwrap();
        let own = [pair(&(TIME, "20150830T123600Z")), pair(&("authorization", "x"))];
        let headers: HeaderMap = own.into_iter().collect();
        let mut outgoing = Outgoing {
            method: "GET",
            host: "example.amazonaws.com",
            path: "/",
            query: "",
            headers: &headers,
            content: EMPTY,
        };
        let (header, signature) = read.sign((ID, SECRET), &outgoing).unwrap();
        assert!(header.contains("SignedHeaders=host;x-amz-date, "), "{header}");
        assert_eq!(signature, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
        let late: HeaderMap = [pair(&(TIME, "20150831T123600Z"))].into_iter().collect();
        outgoing.headers = &late;
        assert!(read.sign((ID, SECRET), &outgoing).unwrap_err().contains("of the day"));
    }

    #[test]
    fn header_of_another_form_is_refused() {
        let good = authorization(ID, "20150830", "s3", "host;x-amz-date");
        let read = Signed::read(&good.replace(", ", ",")).unwrap();
        assert_eq!((read.access_key_id.as_str(), read.service.as_str()), (ID, "s3"));
        for (from, to) in [
            ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"),
            ("/aws4_request", ""),
            ("/aws4_request", "/x/aws4_request"),
            ("20150830", "2015083x"),
            ("us-east-1", ""),
            ("host;", ";"),
            ("host;", "Host;"),
            ("host;", "host\n;"),
            ("Signature=", "Signature=g"),
            (", Signature=", ", Signature=0, Signature="),
            (", Signature=", ", Other=1, Signature="),
            (", SignedHeaders=host;x-amz-date", ""),
        ] {
            assert!(Signed::read(&good.replace(from, to)).is_err(), "{from} {to}");
        }
    }
}
