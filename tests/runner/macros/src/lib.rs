//! The attribute `#[test]` of the whole-program tests: it registers a function with volt-test-runner,
//! with the needs that the function begins with. A crate that imports these macros by `#[macro_use]
//! extern crate` has this attribute in place of the built-in one, in all its modules.

use proc_macro::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};

/// Registers a test: `#[test]`, or `#[test(limit = 900)]` with a limit of its own in seconds.
///
/// The function has no parameters and returns nothing. `needs!(kvm, root);` may only be its first
/// statement: the runner looks for what a test needs before it runs any.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    match register(arguments, &item) {
        Ok(registration) => item.into_iter().chain(registration).collect(),
        Err((span, message)) => error(span, message),
    }
}

type Refusal = (Span, &'static str);

fn register(arguments: TokenStream, item: &TokenStream) -> Result<TokenStream, Refusal> {
    let limit = limit(arguments)?;
    let (name, body) = parts(item)?;
    let needs = needs(&body)?;
    let needs: String =
        needs.iter().map(|need| format!("(\"{need}\", ::volt_tests::need::{need}),")).collect();
    let registration = format!(
        "::volt_test_runner::inventory::submit! {{ ::volt_test_runner::Test {{
             module: ::core::module_path!(), function: \"{name}\", run: {name}, limit: {limit},
             needs: &[{needs}],
         }} }}"
    );
    Ok(registration.parse().expect("a registration is Rust"))
}

/// Returns the limit as an expression of type `Option<Duration>`.
fn limit(arguments: TokenStream) -> Result<String, Refusal> {
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    match &tokens[..] {
        [] => Ok("::core::option::Option::None".to_owned()),
        [TokenTree::Ident(key), TokenTree::Punct(_), TokenTree::Literal(seconds)]
            if key.to_string() == "limit" =>
        {
            Ok(format!("::core::option::Option::Some(::core::time::Duration::from_secs({seconds}))"))
        }
        [first, ..] => Err((first.span(), "expected #[test] or #[test(limit = SECONDS)]")),
    }
}

/// Returns the name and the body of a function that can be a test.
fn parts(item: &TokenStream) -> Result<(Ident, Group), Refusal> {
    let mut tokens = item.clone().into_iter();
    for token in tokens.by_ref() {
        match &token {
            // The built-in attribute would heed these.
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let attribute = group.stream().into_iter().next().map(|first| first.to_string());
                if attribute.is_some_and(|name| ["ignore", "should_panic"].contains(&name.as_str())) {
                    return Err((group.span(), "the runner of these tests knows no such attribute"));
                }
            }
            TokenTree::Ident(word) if word.to_string() == "async" => {
                return Err((word.span(), "a test is not async"));
            }
            TokenTree::Ident(word) if word.to_string() == "fn" => break,
            _ => {}
        }
    }
    match &tokens.collect::<Vec<_>>()[..] {
        [TokenTree::Ident(name), TokenTree::Group(parameters), TokenTree::Group(body)]
            if parameters.stream().is_empty() && body.delimiter() == Delimiter::Brace =>
        {
            Ok((name.clone(), body.clone()))
        }
        [first, ..] => Err((first.span(), "a test has neither parameters nor a result")),
        [] => Err((Span::call_site(), "a test is a function")),
    }
}

/// Returns what the first statement `needs!(…)` names.
fn needs(body: &Group) -> Result<Vec<String>, Refusal> {
    let tokens: Vec<TokenTree> = body.stream().into_iter().collect();
    let is_needs = |at: usize| {
        matches!(&tokens[at..], [TokenTree::Ident(word), TokenTree::Punct(mark), ..]
            if word.to_string() == "needs" && mark.as_char() == '!')
    };
    if let Some(late) = (1..tokens.len()).find(|at| is_needs(*at)) {
        return Err((tokens[late].span(), "needs! must be the first statement of a test"));
    }
    match &tokens[..] {
        [_, _, TokenTree::Group(listed), ..] if is_needs(0) => {
            let words = listed.stream().into_iter().filter(|token| matches!(token, TokenTree::Ident(_)));
            Ok(words.map(|word| word.to_string()).collect())
        }
        _ => Ok(Vec::new()),
    }
}

fn error(span: Span, message: &str) -> TokenStream {
    let message = format!("::core::compile_error! {{ {message:?} }}");
    let tokens: TokenStream = message.parse().expect("an error is Rust");
    tokens.into_iter().map(|mut token| (token.set_span(span), token).1).collect()
}
