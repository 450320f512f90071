#!/bin/sh
# Stands for volt-vmm in the unit tests: writes its command line to a file, and prints a record that is there.
here=$VOLT_DATA_DIR
echo "$*" >>"$here/calls"
case $1 in
run)
    while [ -e "$here/hold" ]; do sleep 0.01; done
    cat "$here/web.json"
    ;;
inspect) cat "$here/inspect.json" ;;
fork) cat "$here/children.json" ;;
esac
