//! From the command line to a client.

use std::path::Path;
use std::{env, fs};

use redlatch::embed::{ClientBuilderExt, Inspector, each_of_quorum};
use redlatch::{Client, ClientBuilder, OptionValue};

use crate::arguments::Server;
use crate::failure::{Exit, Failure};
use crate::reply::{field, text};

/// A client that is not connected yet.
pub(crate) fn client(server: &Server) -> Result<Client, Failure> {
    Ok(builder(server)?.build()?)
}

/// A client of each server of a quorum by itself, else of all that the URL names.
pub(crate) fn clients_of_each(server: &Server) -> Result<Vec<Client>, Failure> {
    let url = url(server)?;
    let each = each_of_quorum(&url).unwrap_or_else(|| vec![url]);
    each.iter().map(|url| client_at(url, server)).collect()
}

/// Connections to every primary, to look at them.
pub(crate) fn inspector(server: &Server) -> Result<Inspector, Failure> {
    let mut inspector = builder(server)?.inspect()?;
    if inspector.topology() != "single" {
        return Ok(inspector);
    }
    let info = inspector.ask(0, &[vec!["INFO"]])?.pop();
    // A server that refuses INFO may be any.
    let info = info.and_then(Result::ok).map(text).unwrap_or_default();
    if field(&info, "cluster_enabled") == Some("1") {
        return Err(Failure::new(
            Exit::Usage,
            "the server is a node of a cluster; use redis+cluster:// in place of redis://",
        ));
    }
    if field(&info, "role") == Some("slave") {
        crate::complain("the server is a replica: locks are taken at its primary");
    }
    Ok(inspector)
}

/// The server and the options of the command line. A file comes before the URL: the variable may be
/// set for everybody, and the file names what this call wants.
fn builder(server: &Server) -> Result<ClientBuilder, Failure> {
    builder_at(&url(server)?, server)
}

pub(crate) fn url(server: &Server) -> Result<String, Failure> {
    url_if_given(server)?.ok_or_else(|| {
        Failure::new(
            Exit::Usage,
            "no server is given; set REDLATCH_URL, or use --url-file or --url, for example --url redis://localhost",
        )
    })
}

pub(crate) fn url_if_given(server: &Server) -> Result<Option<String>, Failure> {
    // Read here: clap would show `--url` in every usage line while the variable is set.
    let url = server.url.clone().or_else(|| env::var("REDLATCH_URL").ok());
    match &server.url_file {
        Some(file) => first_line(file).map(Some),
        None => Ok(url.filter(|url| !url.is_empty())),
    }
}

/// A client of this URL, with the options of the command line.
pub(crate) fn client_at(url: &str, server: &Server) -> Result<Client, Failure> {
    Ok(builder_at(url, server)?.build()?)
}

/// The options of the command line, and this URL.
fn builder_at(url: &str, server: &Server) -> Result<ClientBuilder, Failure> {
    let mut builder = Client::builder(url).language("cli");
    for (name, value) in &server.options {
        builder.set(name, OptionValue::Text(value))?;
    }
    Ok(builder)
}

fn first_line(file: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(file).map_err(|error| {
        let text = format!("cannot read --url-file {}: {error}", file.display());
        Failure::new(Exit::Usage, text)
    })?;
    match text.lines().next().map(str::trim) {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(Failure::new(
            Exit::Usage,
            format!(
                "the first line of --url-file {} is empty; it has to be the URL",
                file.display()
            ),
        )),
    }
}
