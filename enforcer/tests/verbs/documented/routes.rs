//! What the pages ask of the sockets is answered: each path is one, and takes those parameters.
use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use super::{pages, scenes::running};

/// The targets of the pages, and whether each is about the admin socket.
fn targets() -> BTreeSet<(String, bool)> {
    let mut found = BTreeSet::new();
    for page in pages() {
        for line in &page.lines {
            for (begin, root) in [("http://x/", "/"), ("`GET /v1/", "/v1/")] {
                for target in line.split(begin).skip(1) {
                    let target = target.split([' ', '\'', '`']).next().unwrap_or_default();
                    found.insert((format!("{root}{}", target.replace('…', "")), line.contains("admin")));
                }
            }
        }
    }
    found
}

/// The status, and what an error says.
fn asked(socket: &Path, method: &str, target: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let request = format!("{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    let status = first.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = String::new();
    // What is found may have no end.
    if status >= 400 {
        reader.read_to_string(&mut body).unwrap();
    }
    (status, body)
}

#[test]
fn every_path_of_the_pages_is_one_and_takes_their_parameters() {
    let staged = running();
    let targets = targets();
    assert!(targets.len() >= 10, "{targets:?}");
    for (target, is_admin) in &targets {
        // No path takes this method, and a parameter that is none is said first.
        let method = if *is_admin { "PATCH" } else { "GET" };
        let socket = staged.path(if *is_admin { "run/admin.sock" } else { "run/observe.sock" });
        let (status, body) = asked(&socket, method, target);
        let is_known = if *is_admin { status == 405 } else { status != 404 };
        assert!(is_known && !body.contains("is not a parameter"), "{target}: {status} {body}");
    }
    let (wrong, body) = asked(&staged.path("run/admin.sock"), "PATCH", "/v1/reservations?nmae=batch");
    assert!(wrong == 400 && body.contains("is not a parameter"), "{wrong} {body}");
    assert_eq!(asked(&staged.path("run/observe.sock"), "GET", "/v1/reports").0, 404);
}
