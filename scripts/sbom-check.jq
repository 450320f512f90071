# Lists what is wrong with an SBOM, a line each. Argument: locked, names of crates that it must have.

([.components[]["bom-ref"]] + [.metadata.component["bom-ref"]]) as $refs
| ([.dependencies[].ref]) as $described
| (
    (select(.bomFormat != "CycloneDX" or .specVersion != "1.6") | "is not of CycloneDX 1.6"),
    (select(.metadata.timestamp | test("^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$") | not) | "has no time"),
    (select(($refs | unique | length) != ($refs | length)) | "has a component twice"),
    (select(($refs | sort) != ($described | sort)) | "has components without their dependencies"),
    (.dependencies[] | .ref as $ref | .dependsOn[] | select(IN($refs[]) | not)
        | "has no component \(.), of which \($ref) depends"),
    (.components[] | select((.licenses[0].expression // "") == "") | "names no licence of \(.name)"),
    (.components[] | select(.purl != .["bom-ref"]) | "names no package of \(.name)"),
    (.components[] | select(.name | startswith("volt-") | not)
        | select((.hashes[0].content // "") | test("^[0-9a-f]{64}$") | not) | "has no checksum of \(.name)"),
    (.components as $all | $locked | split(" ")[] | . as $name
        | select(any($all[]; .name == $name) | not) | "lacks \($name)")
)
