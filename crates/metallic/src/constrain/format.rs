//! What the values of `format` allow, as regular expressions.
//!
//! Each allows a part of what its standard allows, chosen so that every validator agrees: no 29th of February, no leap seconds.

/// `format` of strings.
pub(super) const FORMATS: &str = "one of date-time, date, time, duration, email, idn-email, hostname, idn-hostname, ipv4, ipv6, uri, \
     uri-reference, iri, iri-reference, uri-template, uuid, json-pointer, relative-json-pointer";

macro_rules! date {
    () => {
        "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|\
         02-(?:0[1-9]|1[0-9]|2[0-8]))"
    };
}
macro_rules! time {
    () => {
        r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    };
}
macro_rules! duration_time {
    () => {
        "T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S)"
    };
}
macro_rules! host {
    () => {
        r"(?:[a-zA-Z0-9]{1,20}(?:-[a-zA-Z0-9]{1,10}){0,3}\.){0,3}[a-zA-Z][a-zA-Z0-9]{1,20}"
    };
}
macro_rules! path {
    () => {
        r"(?:/(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2}){1,80}){0,8}/?"
    };
}
macro_rules! uri {
    () => {
        concat!(
            "[a-z][a-z0-9]{1,11}://",
            host!(),
            "(?::[1-9][0-9]{1,3})?",
            path!(),
            r"(?:\?[a-zA-Z0-9._~=&+-]{1,120})?(?:#[a-zA-Z0-9._~=&+-]{1,80})?"
        )
    };
}
macro_rules! pointer {
    () => {
        "(?:/(?:[a-zA-Z0-9_. -]|~[01]){0,64}){0,16}"
    };
}

/// The whole of a string of this format; `None` where there is no such format.
pub(super) fn expression(format: &str) -> Option<&'static str> {
    Some(match format {
        "date" => concat!("^", date!(), "$"),
        "time" => concat!("^", time!(), "$"),
        "date-time" => concat!("^", date!(), "T", time!(), "$"),
        "duration" => concat!(
            "^P(?:(?:[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,6}D)(?:",
            duration_time!(),
            ")?|",
            duration_time!(),
            "|[0-9]{1,6}W)$"
        ),
        "email" | "idn-email" => {
            concat!(r"^[a-zA-Z0-9_+-]{1,32}(?:\.[a-zA-Z0-9_+-]{1,16}){0,2}@", host!(), "$")
        }
        "hostname" | "idn-hostname" => concat!("^", host!(), "$"),
        "ipv4" => {
            r"^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$"
        }
        "ipv6" => {
            "^(?:(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|(?:[0-9a-fA-F]{1,4}:){1,6}:[0-9a-fA-F]{1,4}|\
             ::(?:[0-9a-fA-F]{1,4}:){0,5}[0-9a-fA-F]{1,4})$"
        }
        "uuid" => "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
        "uri" | "iri" | "uri-template" => concat!("^", uri!(), "$"),
        "uri-reference" | "iri-reference" => {
            concat!("^(?:", uri!(), "|/(?:[a-zA-Z0-9._~-]{1,40}/){0,8}[a-zA-Z0-9._~-]{0,40})$")
        }
        "json-pointer" => concat!("^", pointer!(), "$"),
        "relative-json-pointer" => concat!("^(?:0|[1-9]{1,3})(?:#|", pointer!(), ")$"),
        _ => return None,
    })
}
