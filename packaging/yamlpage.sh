#!/bin/sh
# Makes the manual page of a configuration from its annotated example: yamlpage.sh FILE VERSION.
cat <<END
.TH "ISERD.YAML" 5 "" "goiser $2"
.SH NAME
iserd.yaml \- configuration of iserd
.SH DESCRIPTION
This is an example of all there is, with its defaults. Lines that are commented out are not in force.
.PP
.nf
END
sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\&&/" "$1"
cat <<END
.fi
.SH SEE ALSO
iserd(8), iser(1)
END
