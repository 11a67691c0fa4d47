//! From the command line to a client.

use std::fs;
use std::path::Path;

use redlatch::{Client, OptionValue};

use crate::arguments::Server;
use crate::failure::{Exit, Failure};

/// A client that is not connected yet. A file comes before the URL: the variable may be set for
/// everybody, and the file names what this call wants.
pub(crate) fn client(server: &Server) -> Result<Client, Failure> {
    let url = match (&server.url_file, &server.url) {
        (Some(file), _) => first_line(file)?,
        (None, Some(url)) => url.clone(),
        (None, None) => {
            return Err(Failure::new(
                Exit::Usage,
                "no server is given; set REDLATCH_URL, or use --url-file or --url, for example --url redis://localhost",
            ));
        }
    };
    let mut builder = Client::builder(&url);
    for (name, value) in &server.options {
        builder.set(name, OptionValue::Text(value))?;
    }
    Ok(builder.build()?)
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
