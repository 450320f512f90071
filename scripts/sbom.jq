# Makes a CycloneDX 1.6 document of the crates in volt-vmm, from the output of `cargo metadata`.
# Arguments: root, the package of the program; checksums, lines NAME VERSION SHA-256 of Cargo.lock; time.

def purl: "pkg:cargo/\(.name)@\(.version | gsub("\\+"; "%2B"))";

($checksums | split("\n") | map(split(" ") | select(length == 3) | {key: .[0:2] | join(" "), value: .[2]})
    | from_entries) as $sums
| INDEX(.packages[]; .id) as $packages
| INDEX(.resolve.nodes[]; .id) as $nodes
| ([$packages[] | select(.name == $root)][0].id) as $start
# The crates that the program links, without those that only builds need.
| def linked: [.deps[] | select(any(.dep_kinds[]; .kind == null)) | .pkg];
def reached($new; $known):
    if ($new | length) == 0 then $known
    else ([$new[] | $nodes[.] | linked[]] | unique) as $next
        | reached($next - $known; $known + ($next - $known))
    end;
reached([$start]; [$start]) as $all
| ($packages[$start]) as $program
| {
    "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
    bomFormat: "CycloneDX",
    specVersion: "1.6",
    version: 1,
    metadata: {
        timestamp: $time,
        component: {
            type: "application", "bom-ref": ($program | purl), name: "volt-vmm", version: $program.version,
            licenses: [{expression: $program.license}]
        }
    },
    components: [
        $all[] | select(. != $start) | $packages[.]
        | {
            type: "library", "bom-ref": purl, name, version, scope: "required",
            licenses: [{expression: (.license | gsub("/"; " OR "))}], purl: purl,
            hashes: [$sums["\(.name) \(.version)"] | select(. != null) | {alg: "SHA-256", content: .}],
            externalReferences: [.repository | select(. != null) | {type: "vcs", url: .}]
        }
        | with_entries(select(.value != []))
    ] | sort_by(.["bom-ref"]),
    dependencies: [
        $all[]
        | {ref: ($packages[.] | purl), dependsOn: ([$nodes[.] | linked[] | $packages[.] | purl] | unique)}
    ] | sort_by(.ref)
}
